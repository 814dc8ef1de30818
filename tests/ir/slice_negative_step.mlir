// starts and sizes that are expressions
"func.func"() <{function_type = (!ag.tensor<[n, 4], f64>) -> !ag.tensor<[floordiv(n + 1, 2), 2], f64>, sym_name = "slice_negative_step"}> ({
^bb0(%arg0: !ag.tensor<[n, 4], f64>):
  %0 = "ag.slice"(%arg0) {sizes = [#ag.dim<floordiv(n + 1, 2)>, 2], starts = [#ag.dim<n - 1>, 3], steps = [-2, -2]} : (!ag.tensor<[n, 4], f64>) -> !ag.tensor<[floordiv(n + 1, 2), 2], f64>
  "func.return"(%0) : (!ag.tensor<[floordiv(n + 1, 2), 2], f64>) -> ()
}) : () -> ()
