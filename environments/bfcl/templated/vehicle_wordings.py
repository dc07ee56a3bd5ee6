"""Define the wordings of the calls of VehicleControlAPI: openings and objects for each case, and suffixes.

No word is the name of a function or parameter of the templated classes; no digits and no quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import Case, Suffix, case, equals, given, suffix

CASES: dict[str, tuple[Case, ...]] = {
    "activateParkingBrake": (
        case(
            "engage | apply | pull",
            "the parking brake | the hand brake | the brake for parking",
            equals("mode", "engage"),
        ),
        case(
            "release | loosen | let off",
            "the parking brake | the hand brake | the brake for parking",
            equals("mode", "release"),
        ),
    ),
    "adjustClimateControl": (
        case(
            "set | adjust | bring",
            "the climate to {temperature} degrees | the cabin air to {temperature} degrees | "
            "the inside air to {temperature} degrees",
        ),
    ),
    "check_tire_pressure": (
        case(
            "check | inspect | measure",
            "the pressure of the tires | how well the tires are filled | the air in all tires",
        ),
    ),
    "displayCarStatus": (
        case(
            "show | display | report",
            "the {option} status of the car | the car status of the {option} | the state of the {option}",
        ),
    ),
    "display_log": (
        case("show | display | print", "the log {messages} | the log with {messages} | {messages} in the log"),
    ),
    "estimate_distance": (
        case(
            "estimate | tell me | work out",
            "how far it is from {cityA} to {cityB} | how far apart {cityA} and {cityB} are | "
            "the way from {cityA} to {cityB}",
        ),
    ),
    "estimate_drive_feasibility_by_mileage": (
        case(
            "check | tell me | see",
            "if the car can drive {distance} miles | whether the fuel lasts for {distance} miles | "
            "if {distance} miles are within range",
        ),
    ),
    "fillFuelTank": (
        case(
            "add | pour in | fill in",
            "{fuelAmount} gallons of fuel | {fuelAmount} more gallons | {fuelAmount} gallons to the tank",
        ),
    ),
    "find_nearest_tire_shop": (
        case(
            "locate | look up | tell me",
            "the nearest tire shop | the closest shop for tires | the tire shop close by",
        ),
    ),
    "gallon_to_liter": (
        case(
            "convert | recalculate | turn",
            "{gallon} gallons to liters | {gallon} gallons into liters | the {gallon} gallons to liters",
        ),
    ),
    "get_current_speed": (
        case(
            "tell me | report | show",
            "how fast the car is going | how fast i am driving | the current pace of the car",
        ),
    ),
    "get_outside_temperature_from_google": (
        case(
            "ask google | see on google | let google tell",
            "how warm it is outside | how cold the outside air is | the outside weather",
        ),
    ),
    "get_outside_temperature_from_weather_com": (
        case(
            "ask weather.com | see on weather.com | let weather.com tell",
            "how warm it is outside | how cold the outside air is | the outside weather",
        ),
    ),
    "get_zipcode_based_on_city": (
        case(
            "look up | tell me | get",
            "the zipcode of {city} | the zipcode that {city} has | the postal zipcode for {city}",
        ),
    ),
    "liter_to_gallon": (
        case(
            "convert | recalculate | turn",
            "{liter} liters to gallons | {liter} liters into gallons | the {liter} liters to gallons",
        ),
    ),
    "lockDoors": (
        case(
            "lock | secure | get {it} locked",
            "{door} doors | {door} car doors | {door} doors of the car",
            equals("unlock", False),
        ),
        case(
            "open up | make {it} unlocked | get {it} unlocked",
            "{door} doors | {door} car doors | {door} doors of the car",
            equals("unlock", True),
        ),
    ),
    "pressBrakePedal": (
        case(
            "press | push | step on",
            "the brake pedal to {pedalPosition} | the brake pedal by {pedalPosition} | "
            "the pedal of the brake to {pedalPosition}",
        ),
    ),
    "releaseBrakePedal": (
        case("release | let go of | step off", "the brake pedal | the pedal of the brake | the foot brake pedal"),
    ),
    "setCruiseControl": (
        case(
            "turn on | switch on | begin",
            "cruise control at {speed} with {distanceToNextVehicle} meters gap | "
            "cruising at {speed} with gap {distanceToNextVehicle} | "
            "the cruise at {speed} keeping {distanceToNextVehicle} meters",
            equals("activate", True),
        ),
        case(
            "turn off | switch off | end",
            "cruise control at {speed} with {distanceToNextVehicle} meters gap | "
            "cruising at {speed} with gap {distanceToNextVehicle} | "
            "the cruise at {speed} keeping {distanceToNextVehicle} meters",
            equals("activate", False),
        ),
    ),
    "setHeadlights": (
        case(
            "turn on | switch on | put on",
            "the headlights | the front lights | the lights of the car",
            equals("mode", "on"),
        ),
        case(
            "turn off | switch off | put out",
            "the headlights | the front lights | the lights of the car",
            equals("mode", "off"),
        ),
        case(
            "set {it} to auto | put {it} on auto | let {it} run on auto",
            "the headlights | the front lights | the lights of the car",
            equals("mode", "auto"),
        ),
    ),
    "set_navigation": (
        case(
            "navigate | set the route | guide me",
            "to {destination} | to the address {destination} | over to {destination}",
        ),
    ),
    "startEngine": (
        case(
            "start | turn on | fire up",
            "the engine | the motor | the engine of the car",
            equals("ignitionMode", "START"),
        ),
        case(
            "stop | turn off | shut down",
            "the engine | the motor | the engine of the car",
            equals("ignitionMode", "STOP"),
        ),
    ),
}

SUFFIXES: dict[str, tuple[Suffix, ...]] = {
    "adjustClimateControl": (
        suffix(equals("unit", "celsius"), "celsius"),
        suffix(equals("unit", "fahrenheit"), "fahrenheit"),
        suffix(given("fanSpeed"), "with the fan at {fanSpeed} | and the fan to {fanSpeed}"),
        suffix(given("mode"), "on {mode} | using {mode}"),
    ),
}

CONSTANTS: dict[tuple[str, str], dict[str, str]] = {
    ("adjustClimateControl", "unit"): {unit: unit for unit in ("celsius", "fahrenheit")},
    ("adjustClimateControl", "mode"): {mode: mode for mode in ("auto", "cool", "heat", "defrost")},
    ("displayCarStatus", "option"): {
        "fuel": "fuel",
        "battery": "battery",
        "doors": "doors",
        "climate": "climate",
        "headlights": "headlights",
        "parkingBrake": "parking brake",
        "brakePedal": "brake pedal",
        "engine": "engine",
    },
    ("lockDoors", "door"): {
        "driver": "driver",
        "passenger": "passenger",
        "rear_left": "rear left",
        "rear_right": "rear right",
    },
}
"""Words for the documented constants that fill a slot."""
