// two regions; one only passes its argument on
"func.func"() <{function_type = (!ag.tensor<[], i1>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "cond_branches"}> ({
^bb0(%arg0: !ag.tensor<[], i1>, %arg1: !ag.tensor<[n], f64>):
  %0 = "ag.cond"(%arg0, %arg1) ({
  ^bb0(%arg2: !ag.tensor<[n], f64>):
    %1 = "ag.exp"(%arg2) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
    "ag.yield"(%1) : (!ag.tensor<[n], f64>) -> ()
  }, {
  ^bb0(%arg3: !ag.tensor<[n], f64>):
    "ag.yield"(%arg3) : (!ag.tensor<[n], f64>) -> ()
  }) : (!ag.tensor<[], i1>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
