// run: i64 285 (sum of the squares of 0 to 9, four lanes and a masked last step)
"func.func"() <{function_type = () -> i64, sym_name = "main"}> ({
  %0 = "arith.constant"() <{value = 0 : index}> : () -> index
  %1 = "arith.constant"() <{value = 1 : index}> : () -> index
  %2 = "arith.constant"() <{value = 4 : index}> : () -> index
  %3 = "arith.constant"() <{value = 10 : index}> : () -> index
  %4 = "memref.alloca"(%3) <{alignment = 64 : i64, operandSegmentSizes = array<i32: 1, 0>}> : (index) -> memref<?xf64>
  "scf.for"(%0, %3, %1) ({
  ^bb0(%arg0: index):
    %5 = "arith.index_cast"(%arg0) : (index) -> i64
    %6 = "arith.sitofp"(%5) : (i64) -> f64
    "memref.store"(%6, %4, %arg0) : (f64, memref<?xf64>, index) -> ()
    "scf.yield"() : () -> ()
  }) : (index, index, index) -> ()
  %7 = "arith.constant"() <{value = dense<0.0> : vector<4xf64>}> : () -> vector<4xf64>
  %8 = "scf.for"(%0, %3, %2, %7) ({
  ^bb0(%arg1: index, %arg2: vector<4xf64>):
    %9 = "arith.subi"(%3, %arg1) : (index, index) -> index
    %10 = "vector.create_mask"(%9) : (index) -> vector<4xi1>
    %11 = "vector.maskedload"(%4, %arg1, %10, %7) : (memref<?xf64>, index, vector<4xi1>, vector<4xf64>) -> vector<4xf64>
    %12 = "math.fma"(%11, %11, %arg2) : (vector<4xf64>, vector<4xf64>, vector<4xf64>) -> vector<4xf64>
    "scf.yield"(%12) : (vector<4xf64>) -> ()
  }) {ag.poll = true} : (index, index, index, vector<4xf64>) -> vector<4xf64>
  %13 = "vector.reduction"(%8) <{kind = #vector.kind<add>}> : (vector<4xf64>) -> f64
  %14 = "arith.fptosi"(%13) : (f64) -> i64
  "func.return"(%14) : (i64) -> ()
}) : () -> ()
