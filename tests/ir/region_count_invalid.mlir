// expect: 4:8: ag.cond has 2 region(s), not 1
"func.func"() <{function_type = (!ag.tensor<[], i1>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[], i1>, %arg1: !ag.tensor<[n], f64>):
  %0 = "ag.cond"(%arg0, %arg1) ({
  ^bb0(%arg2: !ag.tensor<[n], f64>):
    "ag.yield"(%arg2) : (!ag.tensor<[n], f64>) -> ()
  }) : (!ag.tensor<[], i1>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
