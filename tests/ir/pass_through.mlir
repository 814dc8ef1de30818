// no ops; one argument twice, one unused
"func.func"() <{function_type = (!ag.tensor<[n], f64>, !ag.tensor<[], i1>) -> (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>), sym_name = "pass_through"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>, %arg1: !ag.tensor<[], i1>):
  "func.return"(%arg0, %arg0) : (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> ()
}) {arg_names = ["x", "na\C3\AFve \22c\22\\"], donated = [0], note = #ag.none} : () -> ()
