// expect: 4:8: ag.sqrt: dtype int64 is not accepted here; cast to a floating-point dtype first
"func.func"() <{function_type = (!ag.tensor<[n], i64>) -> !ag.tensor<[n], i64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], i64>):
  %0 = "ag.sqrt"(%arg0) : (!ag.tensor<[n], i64>) -> !ag.tensor<[n], i64>
  "func.return"(%0) : (!ag.tensor<[n], i64>) -> ()
}) : () -> ()
