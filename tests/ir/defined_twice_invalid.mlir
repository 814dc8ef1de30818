// expect: 5:3: value %0 is defined twice
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.exp"(%arg0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  %0 = "ag.exp"(%0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
