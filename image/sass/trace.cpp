// SPDX-License-Identifier: Apache-2.0
#include "image/sass/trace.h"

#include <algorithm>
#include <iterator>

namespace gpurecover::image::sass {
namespace {

struct Name {
  std::uint32_t opcode;
  const char* name;
  std::uint32_t from = 0, below = 1000;  // architectures
};

// Whole opcodes.
constexpr Name kOwn[] = {
    {0x918, "NOP"},          {0x941, "BSYNC"},      {0x942, "BREAK"},
    {0x945, "BSSY"},         {0x946, "YIELD"},      {0x348, "WARPSYNC"},
    {0x548, "WARPSYNC"},     {0x948, "WARPSYNC"},   {0x91b, "ENDCOLLECTIVE"},
    {0x91a, "DEPBAR"},       {0x9af, "LDGDEPBAR"},  {0x9ab, "ERRBAR"},
    {0x5ab, "CGAERRBAR"},    {0x992, "MEMBAR"},     {0x35d, "NANOSLEEP"},
    {0x75d, "NANOSLEEP"},    {0x95d, "NANOSLEEP"},  {0x356, "BMOV"},
    {0xf55, "BMOV"},         {0xf56, "BMOV"},       {0x31d, "BAR"},
    {0x51d, "BAR"},          {0x91d, "BAR"},        {0xb1d, "BAR"},
    {0xf1d, "BAR"},          {0x3c6, "FENCE"},      {0x9b7, "UTMACMDFLUSH"},
    {0x9b9, "UTMACCTL"},     {0x9b0, "ARRIVES"},    {0x9c7, "UCGABAR_ARV"},
    {0xdc7, "UCGABAR_WAIT"}, {0x3bc, "UBLKPF"},     {0x95c, "BPT"},
    {0x947, "BRA"},          {0x547, "BRA"},        {0x94d, "EXIT"},
    {0x944, "CALL"},         {0x950, "RET"},        {0x949, "BRX"},
    {0x958, "BRXU"},         {0x98f, "CCTL"},       {0x343, "CALL"},
    {0x381, "LDG"},          {0x981, "LDG"},        {0x980, "LD"},
    {0x983, "LDL"},          {0x984, "LDS"},        {0x386, "STG"},
    {0x986, "STG"},          {0x385, "ST"},         {0x985, "ST"},
    {0x387, "STL"},          {0x987, "STL"},        {0x388, "STS"},
    {0x988, "STS"},          {0x3a8, "ATOMG"},      {0x9a8, "ATOMG"},
    {0x3a9, "ATOMG"},        {0x38a, "ATOM"},       {0x98a, "ATOM"},
    {0x38b, "ATOM"},         {0x98e, "RED", 0, 90}, {0x98e, "REDG", 90},
    {0x3a3, "ATOMG"},        {0x9a3, "ATOMG"},      {0x9a2, "ATOM"},
    {0x9a6, "RED", 0, 90},   {0x9a6, "REDG", 90},   {0x38c, "ATOMS"},
    {0x98c, "ATOMS"},        {0x38d, "ATOMS"},      {0xf8c, "ATOMS"},
    {0x58d, "ATOMS"},        {0x83b, "LDSM"},       {0x844, "STSM"},
    {0xfae, "LDGSTS"},       {0xb82, "LDC"},        {0xab9, "ULDC"},
    {0xabb, "ULDC"},         {0x7ac, "LDCU"},       {0x3ba, "UBLKCP"},
    {0x3bb, "UBLKRED"},      {0x5b4, "UTMALDG"},    {0x3b5, "UTMASTG"},
    {0x3b6, "UTMAREDG"},     {0x5b2, "SYNCS"},      {0x9a7, "SYNCS"},
    {0x5a7, "SYNCS"},        {0x82d, "PREEXIT"},    {0x82e, "ACQBULK"},
    {0x82f, "ELECT"},        {0x919, "S2R"},        {0x9c3, "S2UR"},
    {0x805, "CS2R"},         {0x8cb, "CS2UR"},      {0x31c, "B2R"},
    {0x355, "BMOV"},         {0x34e, "LEPC"},       {0x94e, "LEPC"},
    {0x803, "P2R"},          {0x804, "R2P"},        {0x883, "UP2UR"},
    {0x806, "VOTE"},         {0x886, "VOTEU"},      {0x389, "SHFL"},
    {0x589, "SHFL"},         {0x989, "SHFL"},       {0xf89, "SHFL"},
    {0x3a1, "MATCH"},        {0x3c4, "REDUX"},      {0x2cc, "CREDUX"},
    {0x3c2, "R2UR"},         {0x2ca, "R2UR"},       {0x3aa, "QSPC"},
    {0x9aa, "QSPC"},         {0x81c, "PLOP3"},      {0x89c, "UPLOP3"},
    {0x402, "MOV"},          {0x482, "UMOV"},
};

// Arithmetic: bits 0-8, the form apart.
constexpr Name kArithmetic[] = {
    {0x002, "MOV"},           {0x082, "UMOV"},          {0x007, "SEL"},
    {0x087, "USEL"},          {0x008, "FSEL"},          {0x009, "FMNMX"},
    {0x00a, "FSET"},          {0x00b, "FSETP"},         {0x00c, "ISETP"},
    {0x08c, "UISETP"},        {0x00f, "VIMNMX3"},       {0x010, "IADD3"},
    {0x090, "UIADD3"},        {0x011, "LEA"},           {0x091, "ULEA"},
    {0x012, "LOP3"},          {0x092, "ULOP3"},         {0x013, "IABS"},
    {0x015, "VABSDIFF4"},     {0x016, "PRMT"},          {0x096, "UPRMT"},
    {0x017, "IMNMX"},         {0x048, "VIMNMX"},        {0x019, "SHF"},
    {0x099, "USHF"},          {0x01a, "SGXT"},          {0x09a, "USGXT"},
    {0x01b, "BMSK"},          {0x09b, "UBMSK"},         {0x020, "FMUL"},
    {0x021, "FADD"},          {0x022, "FSWZADD"},       {0x023, "FFMA"},
    {0x024, "IMAD"},          {0x0a4, "UIMAD"},         {0x025, "IMAD"},
    {0x0a5, "UIMAD"},         {0x026, "IDP"},           {0x027, "IMAD"},
    {0x0a7, "UIMAD"},         {0x028, "DMUL"},          {0x029, "DADD"},
    {0x02a, "DSETP"},         {0x02b, "DFMA"},          {0x030, "HADD2"},
    {0x031, "HFMA2"},         {0x032, "HMUL2"},         {0x033, "HSET2"},
    {0x034, "HSETP2"},        {0x035, "HFMA2", 0, 100}, {0x035, "IADD", 120},
    {0x097, "UIADD3"},        {0x036, "VIADD"},         {0x037, "IMMA"},
    {0x038, "I2I"},           {0x039, "I2IP"},          {0x03a, "MOVM"},
    {0x03c, "HMMA"},          {0x03d, "BMMA"},          {0x03e, "F2FP"},
    {0x03f, "DMMA"},          {0x040, "HMNMX2"},        {0x043, "F2IP"},
    {0x045, "I2FP"},          {0x046, "VIADDMNMX"},     {0x049, "FFMA2"},
    {0x04a, "FADD2", 0, 120}, {0x04a, "UVIMNMX", 120},  {0x04d, "UIABS", 120},
    {0x050, "UFMNMX", 120},   {0x051, "UFSEL", 120},    {0x052, "UFSET", 120},
    {0x053, "UFSETP", 120},   {0x054, "UFADD", 120},    {0x055, "UFFMA", 120},
    {0x056, "UFMUL", 120},    {0x05a, "UI2F", 120},     {0x05d, "UFRND", 120},
    {0x05e, "UI2FP", 120},    {0x04b, "FMUL2"},         {0x076, "FMNMX3"},
    {0x07a, "QMMA"},          {0x0bd, "UFLO"},          {0x0be, "UBREV"},
    {0x0bf, "UPOPC"},         {0x100, "FLO"},           {0x101, "BREV"},
    {0x102, "FCHK"},          {0x104, "F2F"},           {0x105, "F2I"},
    {0x106, "I2F"},           {0x107, "FRND"},          {0x108, "MUFU"},
    {0x109, "POPC"},          {0x110, "F2F"},           {0x111, "F2I"},
    {0x112, "I2F"},           {0x113, "FRND"},
};

}  // namespace

std::string_view mnemonic(std::uint32_t opcode, std::uint32_t sm) {
  auto is = [&](std::uint32_t code) {
    return [code, sm](const Name& n) { return n.opcode == code && n.from <= sm && sm < n.below; };
  };
  const auto* own = std::find_if(std::begin(kOwn), std::end(kOwn), is(opcode));
  if (own != std::end(kOwn))
    return own->name;
  const auto* other =
      std::find_if(std::begin(kArithmetic), std::end(kArithmetic), is(opcode & 0x1ff));
  return other != std::end(kArithmetic) ? other->name : std::string_view();
}

}  // namespace gpurecover::image::sass
