// expect: 4:17: value %1 is used and not defined before it
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.exp"(%1) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  %1 = "ag.exp"(%0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
