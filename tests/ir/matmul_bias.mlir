// contraction, broadcast to two symbolic sizes
"func.func"() <{function_type = (!ag.tensor<[n, k], f64>, !ag.tensor<[k, m], f64>, !ag.tensor<[m], f64>) -> !ag.tensor<[n, m], f64>, sym_name = "matmul_bias"}> ({
^bb0(%arg0: !ag.tensor<[n, k], f64>, %arg1: !ag.tensor<[k, m], f64>, %arg2: !ag.tensor<[m], f64>):
  %0 = "ag.dot"(%arg0, %arg1) : (!ag.tensor<[n, k], f64>, !ag.tensor<[k, m], f64>) -> !ag.tensor<[n, m], f64>
  %1 = "ag.broadcast"(%arg2) {dims = [1], shape = [#ag.dim<n>, #ag.dim<m>]} : (!ag.tensor<[m], f64>) -> !ag.tensor<[n, m], f64>
  %2 = "ag.add"(%0, %1) : (!ag.tensor<[n, m], f64>, !ag.tensor<[n, m], f64>) -> !ag.tensor<[n, m], f64>
  "func.return"(%2) : (!ag.tensor<[n, m], f64>) -> ()
}) : () -> ()
