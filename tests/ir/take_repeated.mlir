// integer-array index, int64 operand
"func.func"() <{function_type = (!ag.tensor<[n, 3], f64>, !ag.tensor<[4], i64>) -> !ag.tensor<[4, 3], f64>, sym_name = "take_repeated"}> ({
^bb0(%arg0: !ag.tensor<[n, 3], f64>, %arg1: !ag.tensor<[4], i64>):
  %0 = "ag.take"(%arg0, %arg1) {dim = 0 : i64} : (!ag.tensor<[n, 3], f64>, !ag.tensor<[4], i64>) -> !ag.tensor<[4, 3], f64>
  "func.return"(%0) : (!ag.tensor<[4, 3], f64>) -> ()
}) : () -> ()
