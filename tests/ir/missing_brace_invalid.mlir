// expect: the end of the text is not expected here; expected
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  "func.return"(%arg0) : (!ag.tensor<[n], f64>) -> ()
