// NaN, infinity and -0 keep their bits
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> (!ag.tensor<[2], f64>, !ag.tensor<[n], f64>, !ag.tensor<[], f64>, !ag.tensor<[1], f64>), sym_name = "full_special"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.full"() {dtype = f64, shape = [2], value = 0x7FF8000000000000 : f64} : () -> !ag.tensor<[2], f64>
  %1 = "ag.full"() {dtype = f64, shape = [#ag.dim<n>], value = 0xFFF0000000000000 : f64} : () -> !ag.tensor<[n], f64>
  %2 = "ag.full"() {dtype = f64, shape = [], value = -0.0 : f64} : () -> !ag.tensor<[], f64>
  %3 = "ag.full"() {dtype = f64, shape = [1], value = 3 : i64} : () -> !ag.tensor<[1], f64>
  "func.return"(%0, %1, %2, %3) : (!ag.tensor<[2], f64>, !ag.tensor<[n], f64>, !ag.tensor<[], f64>, !ag.tensor<[1], f64>) -> ()
}) : () -> ()
