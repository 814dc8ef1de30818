// no layout is #ag.none, a layout an attribute
"func.func"() <{function_type = (!ag.tensor<[1, 2, 3, 4], f64>) -> !ag.tensor<[1, 2, 3, 4], f64>, sym_name = "relayout_round_trip"}> ({
^bb0(%arg0: !ag.tensor<[1, 2, 3, 4], f64>):
  %0 = "ag.relayout"(%arg0) {layout = #ag.layout<[0, 2, 3, 1]>} : (!ag.tensor<[1, 2, 3, 4], f64>) -> !ag.tensor<[1, 2, 3, 4], f64, order = [0, 2, 3, 1]>
  %1 = "ag.neg"(%0) : (!ag.tensor<[1, 2, 3, 4], f64, order = [0, 2, 3, 1]>) -> !ag.tensor<[1, 2, 3, 4], f64, order = [0, 2, 3, 1]>
  %2 = "ag.relayout"(%1) {layout = #ag.none} : (!ag.tensor<[1, 2, 3, 4], f64, order = [0, 2, 3, 1]>) -> !ag.tensor<[1, 2, 3, 4], f64>
  "func.return"(%2) : (!ag.tensor<[1, 2, 3, 4], f64>) -> ()
}) : () -> ()
