// a const, a carry, a scanned input; two stacked outputs
"func.func"() <{function_type = (!ag.tensor<[], f64>, !ag.tensor<[], f64>, !ag.tensor<[n], f64>) -> (!ag.tensor<[], f64>, !ag.tensor<[n], f64>, !ag.tensor<[n], f64>), sym_name = "scan_recurrence"}> ({
^bb0(%arg0: !ag.tensor<[], f64>, %arg1: !ag.tensor<[], f64>, %arg2: !ag.tensor<[n], f64>):
  %0:3 = "ag.scan"(%arg0, %arg1, %arg2) ({
  ^bb0(%arg3: !ag.tensor<[], f64>, %arg4: !ag.tensor<[], f64>, %arg5: !ag.tensor<[], f64>):
    %1 = "ag.mul"(%arg3, %arg4) : (!ag.tensor<[], f64>, !ag.tensor<[], f64>) -> !ag.tensor<[], f64>
    %2 = "ag.add"(%1, %arg5) : (!ag.tensor<[], f64>, !ag.tensor<[], f64>) -> !ag.tensor<[], f64>
    %3 = "ag.mul"(%2, %2) : (!ag.tensor<[], f64>, !ag.tensor<[], f64>) -> !ag.tensor<[], f64>
    "ag.yield"(%2, %3, %arg5) : (!ag.tensor<[], f64>, !ag.tensor<[], f64>, !ag.tensor<[], f64>) -> ()
  }) {carry = 1 : i64, consts = 1 : i64, length = #ag.dim<n>, reverse = false} : (!ag.tensor<[], f64>, !ag.tensor<[], f64>, !ag.tensor<[n], f64>) -> (!ag.tensor<[], f64>, !ag.tensor<[n], f64>, !ag.tensor<[n], f64>)
  "func.return"(%0#0, %0#1, %0#2) : (!ag.tensor<[], f64>, !ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> ()
}) : () -> ()
