// dtypes as attributes
"func.func"() <{function_type = (!ag.tensor<[3], f64>) -> (!ag.tensor<[3], i64>, !ag.tensor<[3], i1>, !ag.tensor<[3], f32>, !ag.tensor<[3], ui8>), sym_name = "casts"}> ({
^bb0(%arg0: !ag.tensor<[3], f64>):
  %0 = "ag.cast"(%arg0) {dtype = i64} : (!ag.tensor<[3], f64>) -> !ag.tensor<[3], i64>
  %1 = "ag.cast"(%arg0) {dtype = i1} : (!ag.tensor<[3], f64>) -> !ag.tensor<[3], i1>
  %2 = "ag.cast"(%arg0) {dtype = f32} : (!ag.tensor<[3], f64>) -> !ag.tensor<[3], f32>
  %3 = "ag.cast"(%arg0) {dtype = ui8} : (!ag.tensor<[3], f64>) -> !ag.tensor<[3], ui8>
  "func.return"(%0, %1, %2, %3) : (!ag.tensor<[3], i64>, !ag.tensor<[3], i1>, !ag.tensor<[3], f32>, !ag.tensor<[3], ui8>) -> ()
}) : () -> ()
