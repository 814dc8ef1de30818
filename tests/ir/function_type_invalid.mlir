// expect: function 'f': argument 0 is !ag.tensor<[n], f64>, the text says !ag.tensor<[n], f32>
"func.func"() <{function_type = (!ag.tensor<[n], f32>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  "func.return"(%arg0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
