// a layout on the operand, none left on the result
"func.func"() <{function_type = (!ag.tensor<[2, c, 3, w], f32, order = [0, 2, 3, 1]>) -> !ag.tensor<[2], f32>, sym_name = "channels_last_sum"}> ({
^bb0(%arg0: !ag.tensor<[2, c, 3, w], f32, order = [0, 2, 3, 1]>):
  %0 = "ag.mul"(%arg0, %arg0) : (!ag.tensor<[2, c, 3, w], f32, order = [0, 2, 3, 1]>, !ag.tensor<[2, c, 3, w], f32, order = [0, 2, 3, 1]>) -> !ag.tensor<[2, c, 3, w], f32, order = [0, 2, 3, 1]>
  %1 = "ag.sum"(%0) {dims = [1, 2, 3]} : (!ag.tensor<[2, c, 3, w], f32, order = [0, 2, 3, 1]>) -> !ag.tensor<[2], f32>
  "func.return"(%1) : (!ag.tensor<[2], f32>) -> ()
}) : () -> ()
