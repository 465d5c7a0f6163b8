"""How good an encoder is: each evaluator maps a backbone to numbers, during training and after."""
