// writes are values
"func.func"() <{function_type = (!ag.tensor<[n], f64>, !ag.tensor<[2], f64>) -> !ag.tensor<[n], f64>, sym_name = "insert_add_strided"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>, %arg1: !ag.tensor<[2], f64>):
  %0 = "ag.insert_add"(%arg0, %arg1) {starts = [#ag.dim<n - 3>], steps = [2]} : (!ag.tensor<[n], f64>, !ag.tensor<[2], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
