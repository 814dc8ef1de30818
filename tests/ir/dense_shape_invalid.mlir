// expect: dense<...> holds elements of shape (3,), its type tensor<2xf64> needs shape (2,)
"func.func"() <{function_type = () -> (), sym_name = "f"}> ({
  %0 = "ag.constant"() {value = dense<[1.0, 2.0, 3.0]> : tensor<2xf64>} : () -> !ag.tensor<[2], f64>
  "func.return"() : () -> ()
}) : () -> ()
