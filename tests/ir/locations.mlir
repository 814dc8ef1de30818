// source lines, where there are any
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "locations"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.sin"(%arg0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64> loc("my model.py":12:0)
  %1 = "ag.mul"(%0, %0) : (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64> loc("a\22b.py":3:0)
  %2 = "ag.neg"(%1) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%2) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
