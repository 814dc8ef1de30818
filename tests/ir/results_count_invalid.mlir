// expect: 4:3: exp has 1 result(s), more are named
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0:2 = "ag.exp"(%arg0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0#0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
