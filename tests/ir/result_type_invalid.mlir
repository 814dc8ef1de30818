// expect: 4:8: ag.exp: result 0 is !ag.tensor<[n], f64>, the text says !ag.tensor<[n], f32>
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.exp"(%arg0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f32>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
