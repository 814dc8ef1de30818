// expect: 4:24: '!' is not expected here; expected '(', ':', '<{', '{'
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.exp"(%arg0) ! (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
