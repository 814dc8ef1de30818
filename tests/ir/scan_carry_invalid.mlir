// expect: 4:8: ag.scan: scan: the carry starts as ['!ag.tensor<[], f64>'] and comes back as ['!ag.tensor<[], i1>']
"func.func"() <{function_type = (!ag.tensor<[], f64>) -> !ag.tensor<[], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[], f64>):
  %0 = "ag.scan"(%arg0) ({
  ^bb0(%arg1: !ag.tensor<[], f64>):
    %1 = "ag.gt"(%arg1, %arg1) : (!ag.tensor<[], f64>, !ag.tensor<[], f64>) -> !ag.tensor<[], i1>
    "ag.yield"(%1) : (!ag.tensor<[], i1>) -> ()
  }) {carry = 1 : i64, consts = 0 : i64, length = 3 : i64, reverse = false} : (!ag.tensor<[], f64>) -> !ag.tensor<[], f64>
  "func.return"(%0) : (!ag.tensor<[], f64>) -> ()
}) : () -> ()
