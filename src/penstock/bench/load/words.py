"""The words that random texts are made of."""

from __future__ import annotations

from typing import Final

_TEXT: Final = """
a able about above act add age ago air all also am an and any are area arm art as ask at away
back bad ball bank bar base be bed best big bit black blood blue board boat body book both box
boy bring build but buy by call can car care case cat cause cell center chair change check child
city class clear close cold color come cost could country course cover cut dark data day deal
deep did do dog door down draw drive drop dry each early earth east easy eat edge egg end even
ever every eye face fact fall far farm fast father feel few field fight fill film find fine fire
first fish five floor fly food foot for force form four free friend from full game gas get girl
give glass go gold good great green ground group grow had hair half hall hand hard has hat have
he head hear heart heat help her here high him his hit hold home hope horse hot hour house how
ice idea if in inside into iron is it job join just keep key kind king know lake land large last
late law lay lead learn leave left leg less let letter level life light like line list little
live long look lost lot love low machine main make man many map mark may me mean men met middle
might mile milk mind mine miss money month moon more most mother mouth move much music must my
name near need never new next night nine no north not note now number of off office oil old on
once one only open or order other our out over own page paint pair paper park part pass past pay
people per pick piece place plan plant play point poor post power press put question quick rain
ran read ready real red rest rich ride right ring rise river road rock roll room round row rule
run safe said sail same sand save say school sea seat second see seed self sell send set seven
shape she ship shop short should show side sight sign silver simple since sing sit six size skin
sky sleep slow small snow so soft soil some son song soon sound south space stand star start
state stay steel step still stone stop store story street strong such sugar summer sun sure
table tail take talk tall team tell ten test than that the their them then there they thing
think this those three time to today together told too took top town trade train travel tree
true try turn two type under unit until up us use value very view voice wait walk wall want war
warm was watch water way we week weight well went were west what wheel when where which white
who why wide wife wild will wind window winter with woman wood word work world would write year
yellow yes yet you young your
"""

WORDS: Final = tuple(_TEXT.split())
"""Short English words, most of which are one token each, together with the space before them, in
most vocabularies."""
