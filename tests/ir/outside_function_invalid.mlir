// expect: an op stands outside any function
%0 = "ag.full"() {dtype = f64, shape = [], value = 1.0 : f64} : () -> !ag.tensor<[], f64>
