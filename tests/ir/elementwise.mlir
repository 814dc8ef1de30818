// one symbolic size, a value used twice
"func.func"() <{function_type = (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "elementwise"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>, %arg1: !ag.tensor<[n], f64>):
  %0 = "ag.mul"(%arg0, %arg1) : (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  %1 = "ag.exp"(%arg0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  %2 = "ag.add"(%0, %1) : (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%2) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
