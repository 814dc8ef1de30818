// expect: function 'f': its operands: value 0 (!ag.tensor<[n], f64>) is an argument of another region or function; regions are isolated, pass it as an operand
"func.func"() <{function_type = (!ag.tensor<[], i1>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[], i1>, %arg1: !ag.tensor<[n], f64>):
  %0 = "ag.cond"(%arg0) ({
    %1 = "ag.exp"(%arg1) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
    "ag.yield"(%1) : (!ag.tensor<[n], f64>) -> ()
  }, {
    %2 = "ag.sin"(%arg1) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
    "ag.yield"(%2) : (!ag.tensor<[n], f64>) -> ()
  }) : (!ag.tensor<[], i1>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
