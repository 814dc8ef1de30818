// small arrays of every kind are written out
"func.func"() <{function_type = () -> (!ag.tensor<[2, 2], f64>, !ag.tensor<[2], i32>, !ag.tensor<[2], i1>, !ag.tensor<[], f32>, !ag.tensor<[2, 0], f64>, !ag.tensor<[2], ui8>, !ag.tensor<[3], f64>, !ag.tensor<[1], complex<f32>>), sym_name = "constants_inline"}> ({
  %0 = "ag.constant"() {value = dense<[[1.5, -0.0], [1.0e+300, 5.0e-324]]> : tensor<2x2xf64>} : () -> !ag.tensor<[2, 2], f64>
  %1 = "ag.constant"() {value = dense<[1, -2]> : tensor<2xi32>} : () -> !ag.tensor<[2], i32>
  %2 = "ag.constant"() {value = dense<[true, false]> : tensor<2xi1>} : () -> !ag.tensor<[2], i1>
  %3 = "ag.constant"() {value = dense<0.10000000149011612> : tensor<f32>} : () -> !ag.tensor<[], f32>
  %4 = "ag.constant"() {value = dense<> : tensor<2x0xf64>} : () -> !ag.tensor<[2, 0], f64>
  %5 = "ag.constant"() {value = dense<[0, 255]> : tensor<2xui8>} : () -> !ag.tensor<[2], ui8>
  %6 = "ag.constant"() {value = dense<[0x7FF8000000000000, 0x7FF0000000000000, 0xFFF0000000000000]> : tensor<3xf64>} : () -> !ag.tensor<[3], f64>
  %7 = "ag.constant"() {value = dense<[(1.0,2.0)]> : tensor<1xcomplex<f32>>} : () -> !ag.tensor<[1], complex<f32>>
  "func.return"(%0, %1, %2, %3, %4, %5, %6, %7) : (!ag.tensor<[2, 2], f64>, !ag.tensor<[2], i32>, !ag.tensor<[2], i1>, !ag.tensor<[], f32>, !ag.tensor<[2, 0], f64>, !ag.tensor<[2], ui8>, !ag.tensor<[3], f64>, !ag.tensor<[1], complex<f32>>) -> ()
}) : () -> ()
