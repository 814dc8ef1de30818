// a composite without a type rule of its own
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n + 3], f64>, sym_name = "pad_composite"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.pad"(%arg0) {high = [2], low = [1], value = 0.5 : f64} : (!ag.tensor<[n], f64>) -> !ag.tensor<[n + 3], f64>
  "func.return"(%0) : (!ag.tensor<[n + 3], f64>) -> ()
}) : () -> ()
