// expect: 2:34: unknown element type 'f63'
"func.func"() <{function_type = (!ag.tensor<[n], f63>) -> (), sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f63>):
  "func.return"() : () -> ()
}) : () -> ()
