// a product of sizes, and back
"func.func"() <{function_type = (!ag.tensor<[n, m], f64>) -> !ag.tensor<[n, m], f64>, sym_name = "reshape_product"}> ({
^bb0(%arg0: !ag.tensor<[n, m], f64>):
  %0 = "ag.reshape"(%arg0) {shape = [#ag.dim<m * n>]} : (!ag.tensor<[n, m], f64>) -> !ag.tensor<[m * n], f64>
  %1 = "ag.cumsum"(%0) {dim = 0 : i64, exclusive = false, reverse = false} : (!ag.tensor<[m * n], f64>) -> !ag.tensor<[m * n], f64>
  %2 = "ag.reshape"(%1) {shape = [#ag.dim<n>, #ag.dim<m>]} : (!ag.tensor<[m * n], f64>) -> !ag.tensor<[n, m], f64>
  "func.return"(%2) : (!ag.tensor<[n, m], f64>) -> ()
}) : () -> ()
