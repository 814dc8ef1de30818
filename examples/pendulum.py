"""The gradient through a differential equation: which first speed brings a damped pendulum to a given angle after half a second?"""

import numpy as np

import aotgrad as ag

STEPS, DT = 100, 0.005


def angle_after(speed):
    def step(state, _):
        angle, speed = state
        speed = speed - DT * (9.81 * np.sin(angle) + 0.3 * speed)
        return (angle + DT * speed, speed), None

    (angle, _), _ = ag.scan(step, (0.0 * speed, speed), None, length=STEPS)
    return angle


error_and_slope = ag.compile(ag.value_and_grad(lambda speed, goal: (angle_after(speed) - goal) ** 2))
slope_of_angle = ag.compile(lambda speed: ag.jvp(angle_after, (speed,), (1.0,)))

speed, goal = 1.0, 0.5
for _ in range(20):
    angle, slope = slope_of_angle(speed)
    speed -= float((angle - goal) / slope)
error, gradient = error_and_slope(speed, goal)
print(f"first speed {speed:.6f}: angle {float(slope_of_angle(speed)[0]):.6f} after {STEPS * DT:g} s, squared error {float(error):.1e}")
assert error < 1e-16
