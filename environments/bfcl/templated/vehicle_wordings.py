"""Define the wordings of the calls of VehicleControlAPI: openings and objects for each case, and suffixes.

No word is the name of a function or parameter of the templated classes; no digits and no quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import case, suffix

CASES = (
    case(
        "activateParkingBrake",
        "engage | apply | pull",
        "the parking brake | the hand brake | the brake for parking",
        mode="engage",
    ),
    case(
        "activateParkingBrake",
        "release | loosen | let off",
        "the parking brake | the hand brake | the brake for parking",
        mode="release",
    ),
    case(
        "adjustClimateControl",
        "set | adjust | bring",
        "the climate to {temperature} degrees | the cabin air to {temperature} degrees | "
        "the inside air to {temperature} degrees",
    ),
    case(
        "check_tire_pressure",
        "check | inspect | measure",
        "the pressure of the tires | how well the tires are filled | the air in all tires",
    ),
    case(
        "displayCarStatus",
        "show | display | report",
        "the {option} status of the car | the car status of the {option} | the state of the {option}",
    ),
    case(
        "display_log", "show | display | print", "the log {messages} | the log with {messages} | {messages} in the log"
    ),
    case(
        "estimate_distance",
        "estimate | tell me | work out",
        "how far it is from {cityA} to {cityB} | how far apart {cityA} and {cityB} are | "
        "the way from {cityA} to {cityB}",
    ),
    case(
        "estimate_drive_feasibility_by_mileage",
        "check | tell me | see",
        "if the car can drive {distance} miles | whether the fuel lasts for {distance} miles | "
        "if {distance} miles are within range",
    ),
    case(
        "fillFuelTank",
        "add | pour in | fill in",
        "{fuelAmount} gallons of fuel | {fuelAmount} more gallons | {fuelAmount} gallons to the tank",
    ),
    case(
        "find_nearest_tire_shop",
        "locate | look up | tell me",
        "the nearest tire shop | the closest shop for tires | the tire shop close by",
    ),
    case(
        "gallon_to_liter",
        "convert | recalculate | turn",
        "{gallon} gallons to liters | {gallon} gallons into liters | the {gallon} gallons to liters",
    ),
    case(
        "get_current_speed",
        "tell me | report | show",
        "how fast the car is going | how fast i am driving | the current pace of the car",
    ),
    case(
        "get_outside_temperature_from_google",
        "ask google | see on google | let google tell",
        "how warm it is outside | how cold the outside air is | the outside weather",
    ),
    case(
        "get_outside_temperature_from_weather_com",
        "ask weather.com | see on weather.com | let weather.com tell",
        "how warm it is outside | how cold the outside air is | the outside weather",
    ),
    case(
        "get_zipcode_based_on_city",
        "look up | tell me | get",
        "the zipcode of {city} | the zipcode that {city} has | the postal zipcode for {city}",
    ),
    case(
        "liter_to_gallon",
        "convert | recalculate | turn",
        "{liter} liters to gallons | {liter} liters into gallons | the {liter} liters to gallons",
    ),
    case(
        "lockDoors",
        "lock | secure | get {it} locked",
        "{door} doors | {door} car doors | {door} doors of the car",
        unlock=False,
    ),
    case(
        "lockDoors",
        "open up | make {it} unlocked | get {it} unlocked",
        "{door} doors | {door} car doors | {door} doors of the car",
        unlock=True,
    ),
    case(
        "pressBrakePedal",
        "press | push | step on",
        "the brake pedal to {pedalPosition} | the brake pedal by {pedalPosition} | "
        "the pedal of the brake to {pedalPosition}",
    ),
    case(
        "releaseBrakePedal",
        "release | let go of | step off",
        "the brake pedal | the pedal of the brake | the foot brake pedal",
    ),
    case(
        "setCruiseControl",
        "turn on | switch on | begin",
        "cruise control at {speed} with {distanceToNextVehicle} meters gap | "
        "cruising at {speed} with gap {distanceToNextVehicle} | "
        "the cruise at {speed} keeping {distanceToNextVehicle} meters",
        activate=True,
    ),
    case(
        "setCruiseControl",
        "turn off | switch off | end",
        "cruise control at {speed} with {distanceToNextVehicle} meters gap | "
        "cruising at {speed} with gap {distanceToNextVehicle} | "
        "the cruise at {speed} keeping {distanceToNextVehicle} meters",
        activate=False,
    ),
    case(
        "setHeadlights",
        "turn on | switch on | put on",
        "the headlights | the front lights | the lights of the car",
        mode="on",
    ),
    case(
        "setHeadlights",
        "turn off | switch off | put out",
        "the headlights | the front lights | the lights of the car",
        mode="off",
    ),
    case(
        "setHeadlights",
        "set {it} to auto | put {it} on auto | let {it} run on auto",
        "the headlights | the front lights | the lights of the car",
        mode="auto",
    ),
    case(
        "set_navigation",
        "navigate | set the route | guide me",
        "to {destination} | to the address {destination} | over to {destination}",
    ),
    case(
        "startEngine",
        "start | turn on | fire up",
        "the engine | the motor | the engine of the car",
        ignitionMode="START",
    ),
    case(
        "startEngine",
        "stop | turn off | shut down",
        "the engine | the motor | the engine of the car",
        ignitionMode="STOP",
    ),
)

SUFFIXES = (
    suffix("adjustClimateControl", "celsius", unit="celsius"),
    suffix("adjustClimateControl", "fahrenheit", unit="fahrenheit"),
    suffix("adjustClimateControl", "with the fan at {fanSpeed} | and the fan to {fanSpeed}"),
    suffix("adjustClimateControl", "on {mode} | using {mode}"),
)
