// expect: stands for a Python object that text cannot carry; build the function in Python
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  "func.return"(%arg0) : (!ag.tensor<[n], f64>) -> ()
}) {hook = #ag.opaque<"<function f at 0x1>">} : () -> ()
