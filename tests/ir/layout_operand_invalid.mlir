// expect: ag.cumsum in function 'f': operand 0 has type !ag.tensor<[2, 3], f64, order = [1, 0]>; the op takes row-major operands, relayout it first
"func.func"() <{function_type = (!ag.tensor<[2, 3], f64, order = [1, 0]>) -> (), sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[2, 3], f64, order = [1, 0]>):
  %0 = "ag.cumsum"(%arg0) {dim = 0 : i64, exclusive = false, reverse = false} : (!ag.tensor<[2, 3], f64, order = [1, 0]>) -> !ag.tensor<[2, 3], f64, order = [1, 0]>
  "func.return"() : () -> ()
}) : () -> ()
