// expect: 6:5: "func.return" ends region 0 of ag.scan; "ag.yield" was expected
"func.func"() <{function_type = (!ag.tensor<[], f64>) -> !ag.tensor<[], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[], f64>):
  %0 = "ag.scan"(%arg0) ({
  ^bb0(%arg1: !ag.tensor<[], f64>):
    "func.return"(%arg1) : (!ag.tensor<[], f64>) -> ()
  }) {carry = 1 : i64, consts = 0 : i64, length = 3 : i64, reverse = false} : (!ag.tensor<[], f64>) -> !ag.tensor<[], f64>
  "func.return"(%0) : (!ag.tensor<[], f64>) -> ()
}) : () -> ()
