// expect: 2:34: size 'n +' is not understood
"func.func"() <{function_type = (!ag.tensor<[n +], f64>) -> (), sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n +], f64>):
  "func.return"() : () -> ()
}) : () -> ()
