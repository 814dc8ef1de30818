// a module of two; names that need quotes
"func.func"() <{function_type = (!ag.tensor<[2], f64>) -> !ag.tensor<[2], f64>, sym_name = "f 1"}> ({
^bb0(%arg0: !ag.tensor<[2], f64>):
  %0 = "ag.neg"(%arg0) : (!ag.tensor<[2], f64>) -> !ag.tensor<[2], f64>
  "func.return"(%0) : (!ag.tensor<[2], f64>) -> ()
}) : () -> ()
"func.func"() <{function_type = (!ag.tensor<[2], f64>) -> !ag.tensor<[2], f64>, sym_name = "g"}> ({
^bb0(%arg0: !ag.tensor<[2], f64>):
  %0 = "ag.square"(%arg0) : (!ag.tensor<[2], f64>) -> !ag.tensor<[2], f64>
  "func.return"(%0) : (!ag.tensor<[2], f64>) -> ()
}) : () -> ()
