// expect: 4:3: "func.return" ends a region, and another op follows it
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  "func.return"(%arg0) : (!ag.tensor<[n], f64>) -> ()
  %0 = "ag.exp"(%arg0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
}) : () -> ()
