// repeated indices add
"func.func"() <{function_type = (!ag.tensor<[n], f64>, !ag.tensor<[k], i64>, !ag.tensor<[k], f64>) -> !ag.tensor<[n], f64>, sym_name = "scatter_add_repeated"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>, %arg1: !ag.tensor<[k], i64>, %arg2: !ag.tensor<[k], f64>):
  %0 = "ag.scatter_add"(%arg0, %arg1, %arg2) {dim = 0 : i64} : (!ag.tensor<[n], f64>, !ag.tensor<[k], i64>, !ag.tensor<[k], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
