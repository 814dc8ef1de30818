// bool values
"func.func"() <{function_type = (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "compare_where"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>, %arg1: !ag.tensor<[n], f64>):
  %0 = "ag.lt"(%arg0, %arg1) : (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], i1>
  %1 = "ag.eq"(%arg0, %arg0) : (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], i1>
  %2 = "ag.logical_not"(%1) : (!ag.tensor<[n], i1>) -> !ag.tensor<[n], i1>
  %3 = "ag.logical_and"(%0, %2) : (!ag.tensor<[n], i1>, !ag.tensor<[n], i1>) -> !ag.tensor<[n], i1>
  %4 = "ag.neg"(%arg1) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  %5 = "ag.where"(%3, %arg0, %4) : (!ag.tensor<[n], i1>, !ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%5) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
