// run: i64 111 (steps of the Collatz walk from 27; a while, an if with results, an if without else, a call)
"func.func"() <{function_type = (i64) -> i64, sym_name = "next"}> ({
^bb0(%arg0: i64):
  %0 = "arith.constant"() <{value = 1 : i64}> : () -> i64
  %1 = "arith.constant"() <{value = 3 : i64}> : () -> i64
  %2 = "arith.andi"(%arg0, %0) : (i64, i64) -> i64
  %3 = "arith.cmpi"(%2, %0) <{predicate = 0 : i64}> : (i64, i64) -> i1
  %4 = "scf.if"(%3) ({
    %5 = "arith.muli"(%arg0, %1) : (i64, i64) -> i64
    %6 = "arith.addi"(%5, %0) : (i64, i64) -> i64
    "scf.yield"(%6) : (i64) -> ()
  }, {
    %7 = "arith.shrui"(%arg0, %0) : (i64, i64) -> i64
    "scf.yield"(%7) : (i64) -> ()
  }) : (i1) -> i64
  "func.return"(%4) : (i64) -> ()
}) : () -> ()
"func.func"() <{function_type = () -> i64, sym_name = "main"}> ({
  %0 = "arith.constant"() <{value = 27 : i64}> : () -> i64
  %1 = "arith.constant"() <{value = 0 : i64}> : () -> i64
  %2 = "arith.constant"() <{value = 1 : i64}> : () -> i64
  %3 = "arith.constant"() <{value = 0 : index}> : () -> index
  %4 = "arith.constant"() <{value = 1 : index}> : () -> index
  %5 = "arith.constant"() <{value = true}> : () -> i1
  %6 = "memref.alloca"(%4) <{operandSegmentSizes = array<i32: 1, 0>}> : (index) -> memref<?xi64>
  %7:2 = "scf.while"(%0, %1) ({
  ^bb0(%arg0: i64, %arg1: i64):
    %8 = "arith.cmpi"(%arg0, %2) <{predicate = 1 : i64}> : (i64, i64) -> i1
    "scf.condition"(%8, %arg0, %arg1) : (i1, i64, i64) -> ()
  }, {
  ^bb0(%arg2: i64, %arg3: i64):
    %9 = "func.call"(%arg2) <{callee = @next}> : (i64) -> i64
    %10 = "arith.addi"(%arg3, %2) : (i64, i64) -> i64
    "scf.yield"(%9, %10) : (i64, i64) -> ()
  }) : (i64, i64) -> (i64, i64)
  "scf.if"(%5) ({
    "memref.store"(%7#1, %6, %3) : (i64, memref<?xi64>, index) -> ()
    "scf.yield"() : () -> ()
  }, {
  }) : (i1) -> ()
  %11 = "memref.load"(%6, %3) : (memref<?xi64>, index) -> i64
  "func.return"(%11) : (i64) -> ()
}) : () -> ()
