// expect: ag.iota in function 'f': result 0: size 'm' (in m + 1) is bound by no argument
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> (), sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.iota"() {dim = 0 : i64, dtype = i64, shape = [#ag.dim<m + 1>]} : () -> !ag.tensor<[m + 1], i64>
  "func.return"() : () -> ()
}) : () -> ()
