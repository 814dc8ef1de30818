// expect: ag.cond in function 'f': region 1 takes ['!ag.tensor<[m], f64>'], the operands after the predicate are ['!ag.tensor<[n], f64>']
"func.func"() <{function_type = (!ag.tensor<[], i1>, !ag.tensor<[n], f64>) -> !ag.tensor<[], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[], i1>, %arg1: !ag.tensor<[n], f64>):
  %0 = "ag.cond"(%arg0, %arg1) ({
  ^bb0(%arg2: !ag.tensor<[n], f64>):
    %1 = "ag.sum"(%arg2) {dims = [0]} : (!ag.tensor<[n], f64>) -> !ag.tensor<[], f64>
    "ag.yield"(%1) : (!ag.tensor<[], f64>) -> ()
  }, {
  ^bb0(%arg3: !ag.tensor<[m], f64>):
    %2 = "ag.sum"(%arg3) {dims = [0]} : (!ag.tensor<[m], f64>) -> !ag.tensor<[], f64>
    "ag.yield"(%2) : (!ag.tensor<[], f64>) -> ()
  }) : (!ag.tensor<[], i1>, !ag.tensor<[n], f64>) -> !ag.tensor<[], f64>
  "func.return"(%0) : (!ag.tensor<[], f64>) -> ()
}) : () -> ()
