// more than 16 elements are the hex of their bytes
"func.func"() <{function_type = () -> !ag.tensor<[4, 5], f32>, sym_name = "constant_hex"}> ({
  %0 = "ag.constant"() {value = dense<"0x00000000ABAAAA3EABAA2A3F0000803FABAAAA3F5555D53F0000004055551540ABAA2A400000404055555540ABAA6A4000008040ABAA8A40555595400000A040ABAAAA405555B5400000C040ABAACA40"> : tensor<4x5xf32>} : () -> !ag.tensor<[4, 5], f32>
  "func.return"(%0) : (!ag.tensor<[4, 5], f32>) -> ()
}) : () -> ()
