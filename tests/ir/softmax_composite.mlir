// a composite stays one op
"func.func"() <{function_type = (!ag.tensor<[2, n], f64>) -> !ag.tensor<[2, n], f64>, sym_name = "softmax_composite"}> ({
^bb0(%arg0: !ag.tensor<[2, n], f64>):
  %0 = "ag.softmax"(%arg0) {dim = 1 : i64} : (!ag.tensor<[2, n], f64>) -> !ag.tensor<[2, n], f64>
  "func.return"(%0) : (!ag.tensor<[2, n], f64>) -> ()
}) : () -> ()
