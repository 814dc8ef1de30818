// expect: layout order [0, 0] is not an order of the dims 0 to 1
"func.func"() <{function_type = (!ag.tensor<[2, 3], f64, order = [0, 0]>) -> (), sym_name = "f"}> ({
  "func.return"() : () -> ()
}) : () -> ()
