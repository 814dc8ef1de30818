// expect: 2:1: the body of function 'f' must end in "func.return"
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.exp"(%arg0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
}) : () -> ()
