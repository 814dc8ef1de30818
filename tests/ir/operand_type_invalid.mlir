// expect: 4:8: ag.exp: operand 0 is !ag.tensor<[n], f64>, the text says !ag.tensor<[m], f64>
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.exp"(%arg0) : (!ag.tensor<[m], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
