// regions in a region; reversed
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[], f64>, sym_name = "cond_in_scan"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.full"() {dtype = f64, shape = [], value = 1.0 : f64} : () -> !ag.tensor<[], f64>
  %1 = "ag.scan"(%0, %arg0) ({
  ^bb0(%arg1: !ag.tensor<[], f64>, %arg2: !ag.tensor<[], f64>):
    %2 = "ag.full"() {dtype = f64, shape = [], value = 0.0 : f64} : () -> !ag.tensor<[], f64>
    %3 = "ag.gt"(%arg2, %2) : (!ag.tensor<[], f64>, !ag.tensor<[], f64>) -> !ag.tensor<[], i1>
    %4 = "ag.cond"(%3, %arg1, %arg2) ({
    ^bb0(%arg3: !ag.tensor<[], f64>, %arg4: !ag.tensor<[], f64>):
      %5 = "ag.add"(%arg3, %arg4) : (!ag.tensor<[], f64>, !ag.tensor<[], f64>) -> !ag.tensor<[], f64>
      "ag.yield"(%5) : (!ag.tensor<[], f64>) -> ()
    }, {
    ^bb0(%arg5: !ag.tensor<[], f64>, %arg6: !ag.tensor<[], f64>):
      %6 = "ag.sub"(%arg5, %arg6) : (!ag.tensor<[], f64>, !ag.tensor<[], f64>) -> !ag.tensor<[], f64>
      "ag.yield"(%6) : (!ag.tensor<[], f64>) -> ()
    }) : (!ag.tensor<[], i1>, !ag.tensor<[], f64>, !ag.tensor<[], f64>) -> !ag.tensor<[], f64>
    "ag.yield"(%4) : (!ag.tensor<[], f64>) -> ()
  }) {carry = 1 : i64, consts = 0 : i64, length = #ag.dim<n>, reverse = true} : (!ag.tensor<[], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[], f64>
  "func.return"(%1) : (!ag.tensor<[], f64>) -> ()
}) : () -> ()
