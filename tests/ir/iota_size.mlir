// an expression of sizes as a value
"func.func"() <{function_type = (!ag.tensor<[n, m], i32>) -> (!ag.tensor<[n, 2], i32>, !ag.tensor<[], i64>), sym_name = "iota_size"}> ({
^bb0(%arg0: !ag.tensor<[n, m], i32>):
  %0 = "ag.iota"() {dim = 0 : i64, dtype = i32, shape = [#ag.dim<n>, 2]} : () -> !ag.tensor<[n, 2], i32>
  %1 = "ag.size"() {dim = #ag.dim<m * n + 1>} : () -> !ag.tensor<[], i64>
  "func.return"(%0, %1) : (!ag.tensor<[n, 2], i32>, !ag.tensor<[], i64>) -> ()
}) : () -> ()
